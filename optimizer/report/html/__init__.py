"""Answers as pages and pictures: one self-contained HTML file per answer, and its main chart as SVG or PNG."""
