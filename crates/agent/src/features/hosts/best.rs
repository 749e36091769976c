//! The best hosts by one measure, chosen in one walk over all records.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use axum::http::StatusCode;
use serde::Deserialize;
use thalweg_learner::{Host, HostKey};

use crate::api::answer::{Answer, Failure};
use crate::feature::Context;
use crate::present::Presenter;

/// Hosts per request, where it does not say.
const LIMIT_DEFAULT: usize = 100;
/// Most hosts per request.
const LIMIT_MAX: usize = 1000;

/// The query of `GET /v1/hosts`.
#[derive(Deserialize)]
pub struct BestQuery {
    sort: Option<String>,
    limit: Option<String>,
}

/// Order of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// Most connections; records do not count bytes.
    Traffic,
    /// Used last.
    Recent,
    /// Highest cost of the arm that costs least there; hosts without measurements last.
    Cost,
}

/// Names of the orders in requests.
const SORTS: [(&str, Sort); 3] = [
    ("traffic", Sort::Traffic),
    ("recent", Sort::Recent),
    ("cost", Sort::Cost),
];

/// The hosts that a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    sort: Sort,
    limit: usize,
}

impl BestQuery {
    /// The order and limit of the query; `None`: it asks for all hosts.
    pub fn wanted(&self) -> Answer<Option<Wanted>> {
        if self.sort.is_none() && self.limit.is_none() {
            return Ok(None);
        }
        let sort = self.sort.as_deref().unwrap_or(SORTS[0].0);
        let known = SORTS.into_iter().find(|(name, _)| *name == sort);
        let (_, sort) = known.ok_or_else(|| bad("sort", sort, "traffic, recent or cost"))?;
        let limit = match &self.limit {
            None => LIMIT_DEFAULT,
            Some(text) => {
                let number = text.parse().ok();
                let number = number.filter(|number| (1..=LIMIT_MAX).contains(number));
                let expected = format!("a whole number from 1 to {LIMIT_MAX}");
                number.ok_or_else(|| bad("limit", text, &expected))?
            }
        };
        Ok(Some(Wanted { sort, limit }))
    }
}

fn bad(name: &str, found: &str, expected: &str) -> Failure {
    let text = format!("{name}: found {found:?}, expected {expected}");
    Failure(StatusCode::BAD_REQUEST, text)
}

/// Measures in order; more is better. The key makes the order definite.
type Rank = (Option<u64>, u64, Reverse<HostKey>);

impl Wanted {
    /// The keys of the wanted hosts, best first. A request that is read slowly holds only these.
    pub fn keys(self, context: &Context<'_>) -> anyhow::Result<Vec<HostKey>> {
        let table = context.kernel.arms()?;
        let presenter = context.presenter(&table);
        let mut best = Best::new(self.limit);
        context.kernel.walk_hosts(|batch| {
            for (key, host) in &batch {
                best.offer(self.sort.rank(&presenter, key, host));
            }
            Ok(())
        })?;
        Ok(best.keys())
    }
}

impl Sort {
    fn rank(self, presenter: &Presenter, key: &HostKey, host: &Host) -> Rank {
        let connections = host.connections.into();
        let (first, second) = match self {
            Self::Traffic => (Some(connections), host.seen_ns),
            Self::Recent => (Some(host.seen_ns), connections),
            Self::Cost => (presenter.least_cost(key, host), connections),
        };
        (first, second, Reverse(*key))
    }
}

/// Keeps the best of many hosts, at most `limit`.
struct Best {
    limit: usize,
    /// Heap with the worst of the kept hosts on top.
    heap: BinaryHeap<Reverse<Rank>>,
}

impl Best {
    fn new(limit: usize) -> Self {
        let heap = BinaryHeap::new();
        Self { limit, heap }
    }

    fn offer(&mut self, rank: Rank) {
        if self.heap.len() < self.limit {
            self.heap.push(Reverse(rank));
        } else if let Some(mut worst) = self.heap.peek_mut()
            && rank > worst.0
        {
            *worst = Reverse(rank);
        }
    }

    /// Keys of the kept hosts, best first.
    fn keys(self) -> Vec<HostKey> {
        let sorted = self.heap.into_sorted_vec();
        sorted.into_iter().map(|Reverse(rank)| rank.2.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn key(n: u32) -> HostKey {
        let address = IpAddr::from(Ipv4Addr::from(n));
        HostKey::new(1, address, 32, 64).unwrap()
    }

    #[test]
    fn the_best_are_kept_whatever_their_order() {
        // Every residue once, in an order that is neither rising nor falling.
        let ranks = (0..1009u32).map(|n| u64::from(n * 601 % 1009));
        let mut best = Best::new(5);
        for (n, rank) in ranks.clone().enumerate() {
            best.offer((Some(rank), 0, Reverse(key(n as u32))));
            assert!(best.heap.len() <= 5);
        }
        let mut all: Vec<(u64, u32)> = ranks.zip(0..).collect();
        all.sort_unstable_by_key(|(rank, _)| Reverse(*rank));
        let expected: Vec<HostKey> = all[..5].iter().map(|(_, n)| key(*n)).collect();
        assert_eq!(best.keys(), expected);
    }

    #[test]
    fn ties_have_an_order_and_the_unmeasured_are_last() {
        let mut best = Best::new(9);
        for (first, second, n) in [
            (None, 9, 1),
            (Some(0), 7, 3),
            (Some(0), 7, 2),
            (Some(0), 8, 4),
        ] {
            best.offer((first, second, Reverse(key(n))));
        }
        assert_eq!(best.keys(), [4, 2, 3, 1].map(key));
    }

    #[test]
    fn a_request_says_what_it_wants_or_gets_what_is_accepted() {
        let wanted = |sort: Option<&str>, limit: Option<&str>| {
            let [sort, limit] = [sort, limit].map(|text| text.map(str::to_owned));
            BestQuery { sort, limit }.wanted().map_err(|fault| fault.1)
        };
        let some = |sort, limit| Ok(Some(Wanted { sort, limit }));
        assert_eq!(wanted(None, None), Ok(None));
        assert_eq!(wanted(Some("recent"), None), some(Sort::Recent, 100));
        assert_eq!(wanted(None, Some("1")), some(Sort::Traffic, 1));
        assert_eq!(wanted(Some("cost"), Some("1000")), some(Sort::Cost, 1000));
        for text in ["", "Cost", "bytes"] {
            let fault = wanted(Some(text), None).unwrap_err();
            assert_eq!(
                fault,
                format!("sort: found {text:?}, expected traffic, recent or cost")
            );
        }
        for text in ["", "0", "1001", "-1", "1.5", "99999999999999999999"] {
            let fault = wanted(None, Some(text)).unwrap_err();
            let expected = format!("limit: found {text:?}, expected a whole number from 1 to 1000");
            assert_eq!(fault, expected);
        }
    }
}
