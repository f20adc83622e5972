"""Figures of reports, of single runs and of comparisons; `of_report` says which a report has."""

from mixerlab import require_prefix

require_prefix(__name__)
