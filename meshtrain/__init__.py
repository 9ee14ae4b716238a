"""What is meshtrain? A run says what is computed, a layout says where and when, and no layout changes the result."""

__version__ = "0.1.0"
