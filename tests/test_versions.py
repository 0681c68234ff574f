import configparser
import re
from pathlib import Path

import skuq

SETUP = configparser.ConfigParser()
SETUP.read(Path(__file__).parents[1] / "setup.cfg")


def names(lines):
    found = (re.match(r"[a-z-]+", line) for line in lines.split())
    return {match.group() for match in found if match}


def test_versions_of_all_dependencies_are_shown(capsys):
    skuq.show_versions()
    shown = capsys.readouterr().out
    assert f"skuq: {skuq.__version__}" in shown and "python: 3" in shown
    required = names(SETUP["options"]["install_requires"])
    optional = names(SETUP["options.extras_require"]["all"])
    assert len(required) > 10
    assert [name for name in required | optional if f"\n  {name}: " not in shown] == []
    assert "tensorflow: not installed" not in shown
