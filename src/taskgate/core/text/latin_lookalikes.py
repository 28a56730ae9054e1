"""Letters of other scripts, and rare Latin letters, that look like an ASCII letter or digit.

These are facts of Unicode 17.0: the entries of `confusables.txt` (UTS 39) whose prototype is one ASCII letter or digit, for
scripts that common fonts contain and that are written from left to right, without those that compatibility normalization turns
into ASCII. The package `confusable-homoglyphs` has all entries, but of an older version, and loads 0.9 MB of JSON for them.
"""

from __future__ import annotations

from typing import Final

LOOKALIKES: Final = {
    "2": "ƧϨᒿꙄꝚ",
    "3": "ƷȜЗӠⲜⳄⳌꝪꞫ",
    "4": "Ꮞ",
    "5": "Ƽ",
    "6": "ϬбᏮⳒⳓⳜ",
    "8": "Ȣȣ",
    "9": "ⳊⳋꝮ",
    "a": "ɑΑαАаᎪᗅꓮ",
    "b": "ƄΒВЬᏏᏴᑲᖯᗷⲂꓐꞴ",
    "c": "ϲϹСсᏟᴄⲤⲥꓚꮯ",
    "d": "ԁᎠᏧᑯᗞᗪꓒꓓ",
    "e": "ΕЕеҽᎬⴹꓰꬲ",
    "f": "ƒϜքᖴẝꓝꞘꞙꬵ",
    "g": "ƍɡԌցᏀᏳᶃꓖ",
    "h": "ΗНһհᎻᏂᕼⲎꓧ",
    "i": "ıɩɪͺΙιІіւᎥιⲓꙇꭵ",
    "j": "ͿϳЈјᎫᒍꓙꞲ",
    "k": "ΚКᏦⲔꓗ",
    "l": "ƖǀӀӏᏞᒪⲒⳐⵏꓡꓲ",
    "m": "ΜϺМᎷᗰⲘꓟ",
    "n": "ΝոռⲚꓠ",
    "o": "ΟοσϭОоՕօჿᴏᴑⲞⲟⵔꓳꬽ",
    "p": "þƿΡρϱϸРрᏢᑭⲢⲣⳎⳏꓑ",
    "q": "ԛգզⵕ",
    "r": "ƦгᎡᏒᖇᴦⲅꓣꭇꭈꮁ",
    "s": "ƽЅѕՏᏕᏚꓢꜱꮪ",
    "t": "ΤТᎢⲦꓔ",
    "u": "ʋυՍսᑌᴜꓴꞟꭎꭒ",
    "v": "νѴѵᏙᐯᴠⴸꓦꮩ",
    "w": "ɯшѡԜԝաᎳᏔᴡⲽꓪꮃ",
    "x": "ΧХхᕁᕽⲬⵝꓫꞳ",
    "y": "ɣʏΥγϒУуҮүყᎩᎽᶌỿⲨⲩꓬꭚ",
    "z": "ΖᏃᴢꓜꮓ",
}
"""By the lower-case ASCII character that they look like."""
