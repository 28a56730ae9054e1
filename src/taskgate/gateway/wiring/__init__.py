"""Composition of the gateway: each part is created once, from the bottom up, with everything it needs.

A part gets its collaborators in its constructor and never later. Notifications go through the event hub; what a reload replaces
is read from a `Live` value.
"""
