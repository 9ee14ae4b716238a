"""What is every label called? Key -> (English, Korean). Numbers, units and names of the user stay as they are."""

from meshtrain.run.page.words.labels import LABELS
from meshtrain.run.page.words.sections import SECTIONS
from meshtrain.run.page.words.sentences import SENTENCES
from meshtrain.run.page.words.terms import TERMS

WORDS: dict[str, tuple[str, str]] = LABELS | SECTIONS | SENTENCES | TERMS

__all__ = ["WORDS"]
