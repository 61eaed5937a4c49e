"""What the sections of the page show, as data: `page.html` has their structure."""
