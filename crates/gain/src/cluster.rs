//! Clusters, and groups of them as sums.

use crate::limits::Limits;
use crate::row::ROWS;

/// A cluster counts for at most this many connections: a host that opens thousands an hour is
/// still one path in one hour. The connections of a host-hour are alike, so that more of them tell
/// little more, and one odd host-hour would outweigh many.
pub const CLUSTER_CAP: u32 = 4;

/// Connections of one host in one hour: their number and sum of residuals, by row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Connections that said something of the row.
    pub counts: [u32; ROWS],
    /// Differences of the connections from the strata.
    pub sums: [f64; ROWS],
    /// Limits of the connections.
    pub limits: Limits,
}

impl Cluster {
    /// Adds a connection.
    pub fn add(&mut self, residuals: &[Option<f64>; ROWS]) {
        for (row, residual) in residuals.iter().enumerate() {
            if let Some(residual) = residual {
                self.counts[row] = self.counts[row].saturating_add(1);
                self.sums[row] += residual;
            }
        }
    }

    /// Adds the connections of another part of the same cluster.
    pub fn merge(&mut self, other: &Self) {
        for row in 0..ROWS {
            self.counts[row] = self.counts[row].saturating_add(other.counts[row]);
            self.sums[row] += other.sums[row];
        }
        self.limits.merge(&other.limits);
    }
}

/// Sums over the clusters of a group, for one row. A cluster's weight is its number of connections,
/// at most [`CLUSTER_CAP`]; its score is the weight times the mean of its residuals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// Clusters with at least one connection.
    pub clusters: u64,
    /// Connections in them.
    pub connections: u64,
    /// Sum of the weights.
    pub weight: f64,
    /// Sum of the scores.
    pub score: f64,
    /// Sum of the squares of the weights.
    pub weight2: f64,
    /// Sum of weight times score.
    pub cross: f64,
    /// Sum of the squares of the scores.
    pub score2: f64,
    /// Sum of the third powers of the scores: how skewed they are.
    pub score3: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self::NONE
    }
}

impl Moments {
    /// Moments of no cluster.
    pub const NONE: Self = Self {
        clusters: 0,
        connections: 0,
        weight: 0.0,
        score: 0.0,
        weight2: 0.0,
        cross: 0.0,
        score2: 0.0,
        score3: 0.0,
    };

    /// Adds a cluster that is over, for the row with this index.
    pub fn add(&mut self, cluster: &Cluster, row: usize) {
        let count = cluster.counts[row];
        if count == 0 {
            return;
        }
        let weight = f64::from(count.min(CLUSTER_CAP));
        self.push_mean(weight, cluster.sums[row] / f64::from(count), count.into());
    }

    /// Adds the difference of a cluster from another of the same host and hour, for the row with
    /// this index. Its weight is that of a difference of two means.
    pub fn add_pair(&mut self, cluster: &Cluster, beside: &Cluster, row: usize) {
        let counts = [cluster.counts[row], beside.counts[row]];
        if counts.contains(&0) {
            return;
        }
        let [own, other] = counts.map(|count| f64::from(count.min(CLUSTER_CAP)));
        let mean = |cluster: &Cluster| cluster.sums[row] / f64::from(cluster.counts[row]);
        let difference = mean(cluster) - mean(beside);
        self.push_mean(own * other / (own + other), difference, counts[0].into());
    }

    /// Adds a cluster of this weight and mean residual.
    pub(crate) fn push_mean(&mut self, weight: f64, mean: f64, connections: u64) {
        let score = weight * mean;
        self.clusters += 1;
        self.connections += connections;
        self.weight += weight;
        self.score += score;
        self.weight2 += weight * weight;
        self.cross += weight * score;
        self.score2 += score * score;
        self.score3 += score.powi(3);
    }

    /// Adds the clusters of another group.
    pub fn merge(&mut self, other: &Self) {
        self.clusters += other.clusters;
        self.connections += other.connections;
        self.weight += other.weight;
        self.score += other.score;
        self.weight2 += other.weight2;
        self.cross += other.cross;
        self.score2 += other.score2;
        self.score3 += other.score3;
    }

    /// The mean residual.
    pub(crate) fn mean(&self) -> f64 {
        self.score / self.weight
    }

    /// How many clusters of equal weight are worth as much (Kish 1965).
    pub(crate) fn effective_clusters(&self) -> f64 {
        if self.weight2 == 0.0 {
            return 0.0;
        }
        self.weight * self.weight / self.weight2
    }

    /// Sum of the squares of scores around the mean.
    pub(crate) fn sum_of_squares(&self) -> f64 {
        let mean = self.mean();
        (self.score2 - 2.0 * mean * self.cross + mean * mean * self.weight2).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(residuals: &[f64]) -> Cluster {
        let mut cluster = Cluster::default();
        for residual in residuals {
            let mut all = [None; ROWS];
            all[0] = Some(*residual);
            cluster.add(&all);
        }
        cluster
    }

    #[test]
    fn sums_of_two_clusters() {
        let mut moments = Moments::default();
        moments.add(&cluster(&[1.0, 3.0]), 0);
        moments.add(&cluster(&[-1.0]), 0);
        moments.add(&cluster(&[]), 0);
        assert_eq!((moments.clusters, moments.connections), (2, 3));
        assert_eq!(moments.mean(), 1.0);
        // Scores 4 and -1 with weights 2 and 1: (4 - 2)² + (-1 - 1)².
        assert_eq!(moments.sum_of_squares(), 8.0);
        assert_eq!(moments.effective_clusters(), 9.0 / 5.0);
    }

    #[test]
    fn a_busy_host_counts_no_more_than_the_cap() {
        let mut moments = Moments::default();
        moments.add(&cluster(&[0.5; 1000]), 0);
        assert_eq!((moments.weight, moments.score), (4.0, 2.0));
        assert_eq!(moments.connections, 1000);
    }

    #[test]
    fn a_pair_is_a_difference_of_means() {
        let mut moments = Moments::default();
        moments.add_pair(&cluster(&[2.0, 4.0]), &cluster(&[1.0, 1.0]), 0);
        moments.add_pair(&cluster(&[1.0; 100]), &cluster(&[3.0; 48]), 0);
        // One says nothing beside none.
        moments.add_pair(&cluster(&[1.0]), &cluster(&[]), 0);
        assert_eq!((moments.clusters, moments.connections), (2, 102));
        // Weights 2·2/4 and, within the cap, 4·4/8; differences 2 and -2.
        assert_eq!((moments.weight, moments.score), (3.0, -2.0));
    }

    #[test]
    fn parts_of_a_cluster_are_one() {
        let mut whole = cluster(&[1.0, 2.0]);
        whole.merge(&cluster(&[6.0]));
        assert_eq!(whole, cluster(&[1.0, 2.0, 6.0]));
    }
}
