"""Every example of README and docs is run as printed.

The language of a fenced block determines how it is tested: `console` (lines that begin with `$ ` are run by bash, in order, in
a folder of the document; the lines below must appear in what the command prints), `python`, `yaml`, `toml`, `json`, `cedar`;
or `text` and `mermaid`, which are to be looked at. A block whose first line is a comment with a file's name
(`# taskgate.yaml`) is that file. All others that are YAML are configurations, completed by what `sandbox.BASES` has for the
document, and go through the loader of `taskgate check`.

A comment in the line before a block adds what the block does not show:

    <!-- example: file task.json -->                 the block is this file
    <!-- example: given session, handle -->          names that the Python uses (`givens.py`)
    <!-- example: exit 4 -->                         the exit code of the last command of the block, if it is not 0
    <!-- example: not run, REASON -->                only its syntax is checked
"""
