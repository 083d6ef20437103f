"""What the recipes share. Warnings of Paddle's imports that no user can act on are silenced here, before Paddle."""

import warnings

warnings.filterwarnings("ignore", "No ccache found", UserWarning)
warnings.filterwarnings("ignore", "Setuptools is replacing distutils", UserWarning)
warnings.filterwarnings("ignore", "The distutils package is deprecated", DeprecationWarning)
