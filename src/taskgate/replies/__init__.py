"""Replies of the HTTP API: each is one record, from which JSON, OpenAPI, CSV, the tables of commands and the pages are made.

A field that may be missing has the type `UnsetType` in its union; every other field is always written, also one with a default. The
docstring of a class is for contributors; the description of a field is part of the API.

Commands read the same records, so this package imports nothing but `core`, and the console fills them. A field that is added later
has a default, so that commands can read the replies of an older gateway.
"""
