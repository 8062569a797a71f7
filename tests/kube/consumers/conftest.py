"""What differs is shown where a consumer does not say what its slow account says."""

import pytest

pytest.register_assert_rewrite("tests.kube.consumers.table", "tests.kube.consumers.told")
