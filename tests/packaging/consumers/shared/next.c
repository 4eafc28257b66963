/* Stands for a later release of the library, with a function that this one has not. */
int millpond_of_next(void);
int millpond_of_next(void) { return 0; }
