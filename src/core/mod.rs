//! core (to be filled)
