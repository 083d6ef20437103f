"""Shared code of the recipes. Before importing Paddle, it silences import warnings that no user can act on."""

import warnings

warnings.filterwarnings("ignore", "No ccache found", UserWarning)
warnings.filterwarnings("ignore", "Setuptools is replacing distutils", UserWarning)
warnings.filterwarnings("ignore", "The distutils package is deprecated", DeprecationWarning)
warnings.filterwarnings("ignore", "When training, we now always track", UserWarning)
warnings.filterwarnings("ignore", "Be aware, overflowing tokens", UserWarning)
warnings.filterwarnings("ignore", "(?s).*swiglu")
