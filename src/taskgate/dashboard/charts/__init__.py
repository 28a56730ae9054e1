"""Charts of the console as SVG: pure functions from numbers to markup.

A chart is readable without a script: its numbers are on hover (`title`) and in a table below it, and a column can link to the
list of what it counts. Colours come from the style sheet by class, so a chart follows the light and the dark scheme. Every label
may come from a caller or a server: it is escaped here, and invisible characters are shown as escapes.
"""
