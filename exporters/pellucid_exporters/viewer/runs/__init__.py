"""The list of runs: filters, figures and a histogram of what is found."""
