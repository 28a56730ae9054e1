"""Providers of models, for sampling: accounts, and one adapter for each interface."""
