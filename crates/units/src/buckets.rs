//! Counts of times in constant memory: in buckets at most 1/64 of their values wide.

/// Values below this have a bucket each; above, each power of two has this many.
const STEPS: u64 = 64;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = (STEPS as usize) * (64 - STEP_BITS as usize + 1);

/// How many times fell into each bucket.
#[derive(Debug, Clone)]
pub struct Buckets {
    counts: Vec<u64>,
    total: u64,
}

/// The least and the greatest value of a bucket, ns.
pub type Bounds = (u64, u64);

impl Default for Buckets {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
        }
    }
}

impl Buckets {
    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.total += 1;
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The bucket of the value of a rank, from 1 in ascending order; `None` beyond the last.
    pub fn at_rank(&self, rank: u64) -> Option<Bounds> {
        let mut seen = 0;
        let found = self.filled().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        found.map(|(bounds, _)| bounds)
    }

    /// Buckets with a value, in ascending order, and how many are in each.
    pub fn filled(&self) -> impl Iterator<Item = (Bounds, u64)> {
        let counts = self.counts.iter().enumerate();
        let filled = counts.filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (bucket_bounds(bucket), *count))
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    // The leading one and the STEP_BITS bits below it.
    let shift = ns.ilog2() - STEP_BITS;
    ((u64::from(shift) + 1) * STEPS + (ns >> shift) - STEPS) as usize
}

fn bucket_bounds(bucket: usize) -> Bounds {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return (bucket, bucket);
    }
    let shift = bucket / STEPS - 1;
    let first = (STEPS + bucket % STEPS) << shift;
    (first, first + ((1 << shift) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_its_bucket() {
        let mut values: Vec<u64> = (0..10_000).collect();
        values.extend((6..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]));
        values.push(u64::MAX);
        values.sort_unstable();
        let mut before = 0;
        for value in values {
            let (first, last) = bucket_bounds(bucket_of(value));
            assert!(
                (first..=last).contains(&value),
                "{value}: {first} to {last}"
            );
            assert!(last - first <= value / STEPS, "{value}: {first} to {last}");
            assert!(bucket_of(value) >= before, "{value}");
            before = bucket_of(value);
        }
    }

    #[test]
    fn ranks_are_counted_from_one() {
        let mut buckets = Buckets::default();
        assert_eq!(buckets.at_rank(1), None);
        for ns in [3, 1, 3] {
            buckets.add(ns);
        }
        let found = [1, 2, 3, 4].map(|rank| buckets.at_rank(rank));
        assert_eq!(found, [Some((1, 1)), Some((3, 3)), Some((3, 3)), None]);
        assert_eq!((buckets.total(), buckets.filled().count()), (3, 2));
    }
}
