"""Maintenance scripts: documentation that is generated from the code and the published rows."""
