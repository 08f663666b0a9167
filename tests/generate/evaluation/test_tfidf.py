"""The likeness of a response to each document is scikit-learn's default TF-IDF cosine."""

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from services.generate.evaluation.protocols import similarities

DOCUMENTS = (
    "Mercy Mercy Me (The Ecology) became one of popular music's most poignant anthems.",
    "The album became Gaye's first million-selling album, launching two more singles in 1971.",
    "A B c: I",
    "",
)


@pytest.mark.parametrize("response", ["It became one of music's anthems of sorrow", "the ALBUM, the album", "1971"])
def test_cosines_are_those_of_the_default_vectoriser_fitted_on_documents_and_response(response: str) -> None:
    rows = TfidfVectorizer().fit_transform([*DOCUMENTS, response])
    assert similarities(response, DOCUMENTS) == pytest.approx(cosine_similarity(rows[-1], rows[:-1])[0].tolist())


def test_nothing_is_alike_without_words_and_a_text_is_wholly_like_itself() -> None:
    assert similarities("", DOCUMENTS) == [0, 0, 0, 0]
    assert similarities("a b", DOCUMENTS[2:]) == [0, 0]
    assert similarities(DOCUMENTS[0], DOCUMENTS)[0] == pytest.approx(1)
    assert similarities("alone", []) == []
