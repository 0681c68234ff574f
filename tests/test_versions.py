import skuq


def test_versions_of_dependencies_are_shown(capsys):
    skuq.show_versions()
    shown = capsys.readouterr().out
    assert "python: 3" in shown and "numpy: " in shown and "  keras: " in shown
