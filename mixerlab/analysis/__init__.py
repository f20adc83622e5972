"""What trained mixers compute: the measures of the Parallax paper's section Mechanism Analysis."""
