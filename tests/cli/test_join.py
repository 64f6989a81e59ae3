"""`rlboost join`: what a server reads from its environment is what the folder holds."""

from rlboost_jax.cli.join import main
from rlboost_jax.trust.credentials import read_credentials
from tests.certificates import make_run


def test_it_prints_one_word_that_opens_the_run(tmp_path, capsys):
    run = make_run(tmp_path / "run", token="a-secret")
    assert main([f"--workdir={run}"]) == 0
    said = capsys.readouterr()
    (word,) = said.out.splitlines()
    assert not said.err and len(word.split()) == 1
    found, expected = read_credentials(None, {"RLBOOST_JOIN": word}), read_credentials(run / "join")
    assert (found.token, found.seal) == (expected.token, expected.seal) == ("a-secret", found.seal)


def test_without_a_run_it_says_so_in_one_line(tmp_path, capsys):
    assert main([f"--workdir={tmp_path}"]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err == (
        f"error: {tmp_path}/join/token: No such file or directory; a run makes {tmp_path}/join as "
        "it first starts\n"
    )
