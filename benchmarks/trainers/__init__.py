"""Four questions to trainers: each is a test that trains, kills and resumes in new processes."""
