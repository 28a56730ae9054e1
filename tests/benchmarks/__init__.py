"""The benchmark: an upstream that is never the bottleneck, a load client, and the program that compares relays."""
