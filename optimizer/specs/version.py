"""The version of this program, where every room can read it."""

from __future__ import annotations

VERSION = "0.1.0"
