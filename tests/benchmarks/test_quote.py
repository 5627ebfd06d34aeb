"""Figures in the documents are those of the result files."""

from benchmarks.quote import DOCUMENTS, ROOT, quoted


def test_documents_quote_the_results_as_they_are() -> None:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        assert quoted(text) == text, f"{name}: run python -m benchmarks.quote"


def test_a_figure_changed_by_hand_would_be_noticed() -> None:
    text = (ROOT / "README.md").read_text()
    changed = text.replace("µs", "ns", 1)
    assert changed != text
    assert quoted(changed) == text
