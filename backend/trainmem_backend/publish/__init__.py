"""From runs to a published dataset: validate, predict beside, merge, write, and push only when asked."""
