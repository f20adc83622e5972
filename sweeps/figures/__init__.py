"""Figures of reports, of single runs and of comparisons; `of_report` says which a report has."""
