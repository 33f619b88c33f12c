// Rotary position embeddings: pairs of channels of a head rotated by an angle that grows with their position. A thread has
// one angle of the table, or one pair, which it reads before it writes, so that y may be x.

// table[position] = [cosine; half][sine; half] of position * base^(-i / half). In f64: an angle of thousands in f32 has few
// digits left within a turn. n is positions x half.
KERNEL(rotary_table, (float *table, unsigned long long n, unsigned half, float base)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 position = quotient(t, half);
    unsigned i = (unsigned)(t - position * half);
    double angle = (double)position * pow((double)base, -(double)i / (double)half);
    float *row = table + position * 2 * half;
    row[i] = (float)cos(angle);
    row[half + i] = (float)sin(angle);
}

// y = x rotated by the table, sines times sign; or added to y. n is pairs.
KERNEL(rotary_turn, (const Map *x, const float *table, Map *y, unsigned long long n, unsigned length, unsigned channels,
                     unsigned half, float sign, unsigned accumulate)) {
    u64 t = INDEX;
    if (t >= n) return;
    u64 row = quotient(t, channels / 2);
    unsigned of_row = (unsigned)(t - row * (channels / 2)), head = of_row / half, i = of_row - head * half;
    const float *cosines = table + (row - quotient(row, length) * length) * 2 * half;
    u64 at = row * channels + head * 2 * half + i;
    float a = number(x[at]), b = number(x[at + half]), c = cosines[i], s = sign * cosines[half + i];
    float first = a * c - b * s, second = b * c + a * s;
    y[at] = stored(accumulate ? number(y[at]) + first : first);
    y[at + half] = stored(accumulate ? number(y[at + half]) + second : second);
}
