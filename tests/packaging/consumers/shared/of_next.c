int millpond_of_next(void);
int main(void) { return millpond_of_next(); }
