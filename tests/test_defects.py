"""What `python -m tests.defects` puts back fits the sources, and its tests are there."""

import pytest

from tests.defects import DEFECTS, ROOT, Defect


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda each: each.name)
def test_it_is_there_once_and_its_test_exists(defect: Defect) -> None:
    assert (ROOT / defect.file).read_text().count(defect.right) == 1
    path, name = defect.test.split("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()
