"""`reshape paper NAME --live`: an experiment of the papers with real trainings on emulated nodes of this machine."""
