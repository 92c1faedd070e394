"""What a prompt becomes: ids, or an estimate."""

from __future__ import annotations

from array import array

from gateway.core.prompt import BYTES_PER_TOKEN, TextInput
from gateway.tokens.agreement import Form
from gateway.tokens.results import estimated, exact, form_of, raws_of


def test_ids_of_one_prompt_are_its_own_unless_the_client_made_them():
    ids = array("I", [1, 2, 3])
    ours, theirs = exact([ids]), exact([ids], ours=False)
    assert (ours.ids, ours.count, ours.single, ours.own) == (ids, 3, True, ids)
    assert (theirs.ids, theirs.count, theirs.single, theirs.own) == (ids, 3, True, None)


def test_of_several_prompts_the_first_is_known_and_all_are_counted():
    first, second = array("I", [1, 2]), array("I", [3])
    prompt = exact([first, second])
    assert (prompt.ids, prompt.count, prompt.single, prompt.own) == (first, 3, False, None)


def test_an_estimate_counts_the_bytes_of_all_prompts_and_says_why():
    raws = [b"a" * 10 * BYTES_PER_TOKEN, b"b" * 20 * BYTES_PER_TOKEN]
    one, both, none = estimated(raws[:1], "failed"), estimated(raws, "failed"), estimated([b"", b""], "failed")
    assert (one.count, one.single, one.why) == (10, True, "failed")
    assert (both.count, both.single, both.why) == (30, False, "failed")
    assert none.count == 1


def test_texts_are_estimated_from_their_bytes_even_where_they_are_no_unicode():
    prompt = TextInput(texts=("caf\u00e9", "\ud800"))
    assert form_of(prompt) is Form.TEXT
    assert raws_of(prompt) == [b"caf\xc3\xa9", b"?"]
