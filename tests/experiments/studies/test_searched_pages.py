"""A page's question and its answer."""

from experiments.studies import searched_pages as study

PAGE = (
    "# ls\n\n> List files.\n> More information: <x>.\n\n- List all files:\n\n`ls -a`\n"
)


def test_a_page_becomes_a_question():
    question, answer = study.page({"text": PAGE})
    assert question == "List files. Give an example of what ls can do.\n\n"
    assert answer == "List all files"


def test_pages_without_an_example_are_left_out():
    assert study.page({"text": PAGE.replace("List all files", "Help")}) is None
    assert study.page({"text": PAGE.partition("\n\n- ")[0]}) is None
    assert study.page({"text": "# ls\n\n- List all files:\n"}) is None
