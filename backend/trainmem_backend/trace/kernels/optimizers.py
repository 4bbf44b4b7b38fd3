"""Fused optimizer steps and lists of tensors."""

from __future__ import annotations

__all__: list[str] = []
