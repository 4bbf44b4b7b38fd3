"""The Measured tab's parts: plain functions from published rows to HTML."""
