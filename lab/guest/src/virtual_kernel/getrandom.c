ssize_t os_getrandom(void *buf, size_t len, unsigned int flags)
{
	/*
	 * Thalweg: all randomness of this kernel begins here, and shall be the
	 * same in each run. SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
	 */
	static unsigned long long state;
	static int seeded;
	unsigned char *out = buf;
	size_t at;

	(void)flags;
	if (!seeded) {
		const char *seed = getenv("THALWEG_SEED");

		state = seed ? strtoull(seed, NULL, 10) : 0;
		seeded = 1;
	}
	for (at = 0; at < len; at++) {
		unsigned long long z = state += 0x9e3779b97f4a7c15ULL;

		z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
		z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
		out[at] = z ^ (z >> 31);
	}
	return len;
}
