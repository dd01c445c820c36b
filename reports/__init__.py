"""Reports: what was compared with what, as pages, plots and tables."""
