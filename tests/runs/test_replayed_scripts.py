"""What a replay runs and prints, whatever a record says."""

import pytest

from composable.replay import ReplayError, _Script
from composable.runs.environment import hash_file


@pytest.fixture
def folders(tmp_path):
    for name in ("named", "other"):
        (tmp_path / name).mkdir()
        text = f"open({str(tmp_path / name / 'ran')!r}, 'w').close()"
        (tmp_path / name / "replayed_module.py").write_text(text)
    return tmp_path


def script(folders, cwd, *arguments):
    path = folders / "named" / "replayed_module.py"
    digest = hash_file(path)
    return _Script(str(path), digest, "replayed_module", list(arguments), str(folders / cwd))


def test_runs_the_module_that_is_the_named_script(folders):
    script(folders, "named").run()

    assert (folders / "named" / "ran").exists()


def test_rejects_a_module_that_is_another_file(folders):
    with pytest.raises(ReplayError, match=r"replayed_module is .*other.*, and not the recorded"):
        script(folders, "other").run()

    assert not (folders / "other" / "ran").exists()


def test_prints_the_command_without_control_characters(folders):
    text = str(script(folders, "named", "\x1b[2J", "a b"))

    assert text.startswith("python -m replayed_module '\\x1b[2J' 'a b' (")
