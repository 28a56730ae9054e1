"""The process of a gateway: start, reload of the configuration, housekeeping, drain and end."""
