"""The sections of a configuration file as classes of `config.sections`: every key, its type, default and description.

The reference in `docs/configuration.md`, the example file and the JSON schema are generated from these models.
"""
