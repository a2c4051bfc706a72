"""Names near an exact form: a character more or less, of another alphabet, a directory deeper."""

from __future__ import annotations

from hypothesis import strategies as st

ODD = st.sampled_from(
    [*"0123456789abcdefgvwxyzABCDEFGVILOUZ_-,.:!#/", "\n", " ", "ü", "#1", "/x", "x/", ".csv"]
)
Edit = tuple[str, int, str]


def edited(name: str, edits: list[Edit]) -> str:
    for what, place, text in edits:
        at = place % (len(name) + 1)
        if what == "insert":
            name = name[:at] + text + name[at:]
        elif what == "replace":
            name = name[:at] + text + name[at + 1 :]
        elif what == "drop":
            name = name[:at] + name[at + 1 :]
        elif what == "append":
            name += text
        elif what == "prepend":
            name = text + name
        elif what == "upper":
            name = name[:at].upper() + name[at:]
        else:
            name = name[:at].lower() + name[at:]
    return name


_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "drop", "append", "prepend", "upper", "lower"]),
        st.integers(0, 200),
        ODD,
    ),
    max_size=2,
)


def near(exact: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Exact names, and names that differ from them in one or two places."""
    return st.builds(edited, exact, _EDITS)


def joined(*parts: str | st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*drawn).map("".join)
