"""Source: the text of kernels as markup, lightly coloured."""

import re

from superopt.report.svg import escape

__all__ = ["coloured"]

_WORDS = (
    "and|as|assert|auto|break|class|const|constexpr|continue|def|elif|else|extern|float|for|from|if|import|"
    "in|index_t|inline|int|is|lambda|namespace|not|or|pass|return|static|struct|uint8_t|void|while|with|"
    "None|True|False"
)
_REST = (
    r'|(?P<s>"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
    r"|(?P<n>\b\d[\w.]*(?:[eE][+-]?\d+)?)"
    rf"|(?P<k>\b(?:{_WORDS})\b|@[\w.]+)"
    r"|(?P<f>\b[A-Za-z_]\w*(?=\())"
)
_PYTHON = re.compile(rf"(?P<c>#[^\n]*){_REST}")
_CPP = re.compile(rf"(?P<c>//[^\n]*|/\*[\s\S]*?\*/)|(?P<p>#[^\n]*){_REST}")


def coloured(text: str) -> str:
    """Return Python or C++ as markup: comments, strings, numbers, keywords, calls."""
    token = _CPP if "#include" in text or "namespace " in text else _PYTHON
    parts = []
    at = 0
    for match in token.finditer(text):
        kind = "k" if match.lastgroup == "p" else match.lastgroup
        parts.append(escape(text[at : match.start()]))
        parts.append(f'<span class="{kind}">{escape(match[0])}</span>')
        at = match.end()
    parts.append(escape(text[at:]))
    return "".join(parts)
