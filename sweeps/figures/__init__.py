"""Figures of reports, of single runs and of comparisons; `report_figures` says which a report has."""
