"""What the fork server of `processes` imports. No operation runs here: Paddle's threads would be lost in the forks."""

import contextlib
import gc
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import common.run_report  # noqa: F401
    import paddle  # noqa: F401
    import pytest  # noqa: F401
    import trainer_common  # noqa: F401

    with contextlib.suppress(ImportError):
        import paddlenlp.transformers  # noqa: F401

gc.freeze()  # in the forks the collector looks at their own objects only
