//! Pages of several objects, each a call (`calls`).
//!
//! A page begins at its own moment, whether or not earlier ones are done. Its first object comes
//! alone: it names the others. These come over several connections at once, one after the other on
//! each. The receiver's receipt stands for the request of the next object.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_units::random::{Random, mix};

use super::calls::{Caller, Head};
use super::{Bytes, Flow, Plan, now_ns};

/// The classes of objects, with the bytes up to which they reach. The first fit into the initial
/// window of ten segments (RFC 6928).
pub const OBJECTS: [(&str, u64); 3] = [("small", 14_000), ("medium", 100_000), ("large", u64::MAX)];

/// Most objects of a page.
const MOST_OBJECTS: f64 = 1000.0;

/// Pages for a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Web {
    /// Pages begin within this time, milliseconds.
    pub(crate) ms: u64,
    /// The mean time between pages, µs.
    pub(crate) every_us: u64,
    /// The mean number of objects.
    pub(crate) objects: u32,
    /// Most connections that a page has at once.
    pub(crate) at_once: u32,
    /// Share of the pages whose connections stay open.
    pub(crate) persistent: f64,
    pub(crate) bytes: Bytes,
    /// Seed of all that chance decides.
    pub(crate) seed: u64,
}

/// A page to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Page {
    /// Number of the page, counted from 0.
    pub(super) number: u32,
    /// Time after the begin, ns.
    pub(super) at_ns: u64,
    /// Bytes of its objects; there is at least one.
    pub(super) objects: Vec<u64>,
    /// Whether its connections stay open for later pages.
    pub(super) stays: bool,
}

impl Page {
    /// An object that was not sent, of a page that began at a moment.
    pub(super) fn unsent_flow(&self, n: usize, moment_ns: u64) -> Flow {
        let bytes = self.objects[n];
        // The last class has no end.
        let class = OBJECTS.iter().find(|(_, most)| bytes <= *most);
        Flow {
            class: class.map_or_else(String::new, |(class, _)| (*class).to_owned()),
            flow_bytes: Some(bytes),
            begun_ns: moment_ns,
            page: Some(self.number),
            ..Flow::default()
        }
    }
}

impl Web {
    /// All pages. They depend on nothing but its fields.
    pub(super) fn plan_pages(&self) -> Vec<Page> {
        let mut random = Random::new(mix(self.seed));
        let mut pages: Vec<Page> = Vec::new();
        let (mut at_ns, mut sent) = (0.0, 0);
        loop {
            // Exponential gaps make a Poisson process. 1 − fraction is above 0.
            at_ns += -(1.0 - random.fraction()).ln() * self.every_us as f64 * 1e3;
            if at_ns >= self.ms as f64 * 1e6 {
                return pages;
            }
            let count = 1 + self.further_objects(random.fraction());
            pages.push(Page {
                number: pages.len() as u32,
                at_ns: at_ns as u64,
                objects: (sent..sent + count)
                    .map(|n| self.bytes.of_flow(n))
                    .collect(),
                stays: random.fraction() < self.persistent,
            });
            sent += count;
        }
    }

    /// The objects after the first, geometric, from a uniform number.
    fn further_objects(&self, uniform: f64) -> usize {
        let again = 1.0 - 1.0 / f64::from(self.objects);
        match self.objects {
            0 | 1 => 0,
            _ => ((1.0 - uniform).ln() / again.ln()).min(MOST_OBJECTS) as usize,
        }
    }

    /// Sends all pages of the sender at a place. Objects are in the order of their pages.
    pub(super) fn send_pages(&self, plan: &Plan, place: usize) -> Vec<Flow> {
        let begun_ns = now_ns();
        let browser = Browser {
            web: self,
            plan,
            place,
            end_ns: begun_ns + self.ms * 1_000_000,
            opened: AtomicUsize::new(0),
            idle: Mutex::new(Vec::new()),
        };
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for page in self.plan_pages() {
                let moment_ns = begun_ns + page.at_ns;
                let left_ns = moment_ns.saturating_sub(now_ns());
                std::thread::sleep(Duration::from_nanos(left_ns));
                let browser = &browser;
                threads.push(scope.spawn(move || browser.load_page(&page, moment_ns)));
            }
            threads
                .into_iter()
                .flat_map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        })
    }
}

/// The connections of a sender, and where its pages come from.
struct Browser<'a> {
    web: &'a Web,
    plan: &'a Plan,
    place: usize,
    end_ns: u64,
    /// Connections opened so far.
    opened: AtomicUsize,
    /// Open connections without a page.
    idle: Mutex<Vec<Caller>>,
}

/// A page on its way.
struct Loading<'a> {
    page: &'a Page,
    moment_ns: u64,
    /// The next object to be sent.
    next: AtomicUsize,
    given_up: AtomicBool,
    /// Sent objects, by number.
    sent: Mutex<BTreeMap<usize, Flow>>,
}

impl Browser<'_> {
    /// The objects of a page, in order.
    fn load_page(&self, page: &Page, moment_ns: u64) -> Vec<Flow> {
        let loading = Loading {
            page,
            moment_ns,
            next: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            sent: Mutex::new(BTreeMap::new()),
        };
        let mut first = self.spare_connection();
        self.send_next_object(&loading, &mut first);
        let further = page.objects.len() - 1;
        let lanes = further.min(self.web.at_once as usize);
        std::thread::scope(|scope| {
            for _ in 1..lanes {
                scope.spawn(|| self.send_objects(&loading, self.spare_connection()));
            }
            self.send_objects(&loading, first);
        });
        let mut sent = lock_mutex(&loading.sent);
        (0..page.objects.len())
            .map(|n| {
                sent.remove(&n).unwrap_or_else(|| Flow {
                    error: Some("given up after another object of its page failed".to_owned()),
                    ..page.unsent_flow(n, moment_ns)
                })
            })
            .collect()
    }

    /// Objects one after the other over a connection, until none is left.
    fn send_objects(&self, loading: &Loading<'_>, mut caller: Option<Caller>) {
        while self.send_next_object(loading, &mut caller) {}
        if loading.page.stays {
            lock_mutex(&self.idle).extend(caller);
        }
    }

    /// Sends the next object over a connection, or over a new one. False if none is left.
    fn send_next_object(&self, loading: &Loading<'_>, caller: &mut Option<Caller>) -> bool {
        if loading.given_up.load(Ordering::Relaxed) {
            return false;
        }
        let n = loading.next.fetch_add(1, Ordering::Relaxed);
        let Some(bytes) = loading.page.objects.get(n) else {
            return false;
        };
        let mut flow = loading.page.unsent_flow(n, loading.moment_ns);
        let begun_ns = now_ns();
        let open = match caller.take() {
            Some(open) => Ok(open),
            None => {
                let serial = self.opened.fetch_add(1, Ordering::Relaxed);
                Caller::open_connection(self.plan, self.place, serial)
            }
        };
        let done = open.and_then(|mut open| {
            let head = Head {
                bytes: *bytes,
                think_us: 0,
            };
            open.send_call(head, self.end_ns, &mut flow)?;
            Ok(open)
        });
        match done {
            Ok(open) => *caller = Some(open),
            Err(error) => {
                flow.error = Some(error.to_string());
                loading.given_up.store(true, Ordering::Relaxed);
            }
        }
        // A new connection counts from the call of connect.
        let done_ns = flow.begun_ns as f64 + flow.took_us * 1e3;
        flow.begun_ns = begun_ns;
        flow.took_us = (done_ns - begun_ns as f64) / 1e3;
        flow.page_us = (done_ns - loading.moment_ns as f64) / 1e3;
        lock_mutex(&loading.sent).insert(n, flow);
        true
    }

    /// An open connection without a page.
    fn spare_connection(&self) -> Option<Caller> {
        lock_mutex(&self.idle).pop()
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Load, Sender, client, server};
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    fn web(seed: u64) -> Web {
        Web {
            ms: 400_000,
            every_us: 200_000,
            objects: 5,
            at_once: 3,
            persistent: 0.25,
            bytes: Bytes::Each(20_000),
            seed,
        }
    }

    #[test]
    fn pages_come_at_random_and_depend_on_the_seed_alone() {
        let pages = web(1).plan_pages();
        assert_eq!(pages, web(1).plan_pages());
        assert_ne!(pages, web(2).plan_pages());
        // 2000 are expected, with a standard deviation of 45; of an exponential gap the share
        // above its mean is 1/e = 0.368 ± 0.011.
        let count = pages.len();
        assert!((1800..2200).contains(&count), "{count}");
        let gaps = pages.windows(2).map(|two| two[1].at_ns - two[0].at_ns);
        let above = gaps.filter(|gap| *gap > 200_000_000).count() as f64 / count as f64;
        assert!((above - 0.368).abs() < 0.05, "{above}");
        let objects: usize = pages.iter().map(|page| page.objects.len()).sum();
        // Geometric: deviation sqrt(5·4), of the mean 0.1.
        let mean = objects as f64 / count as f64;
        assert!((mean - 5.0).abs() < 0.5, "{mean}");
        let stays = pages.iter().filter(|page| page.stays).count() as f64 / count as f64;
        assert!((stays - 0.25).abs() < 0.05, "{stays}");
        let alone = Web {
            objects: 1,
            ..web(1)
        };
        assert!(
            alone
                .plan_pages()
                .iter()
                .all(|page| page.objects.len() == 1)
        );
    }

    fn sent(web: Web) -> Vec<Flow> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || server::accept_connections(&listener));
        client::send_plan(&Plan {
            servers: vec![address],
            arms: Vec::new(),
            seed: 1,
            senders: vec![Sender {
                class: String::new(),
                cc: None,
                load: Load::Web(web),
            }],
        })
    }

    fn ports<'a>(flows: impl Iterator<Item = &'a Flow>) -> BTreeSet<u16> {
        flows.map(|flow| flow.local_port).collect()
    }

    #[test]
    fn a_page_has_its_first_object_alone_and_few_connections() {
        let web = Web {
            ms: 300,
            every_us: 15_000,
            persistent: 0.0,
            ..web(1)
        };
        let flows = sent(web);
        let pages = web.plan_pages();
        assert!(pages.len() > 3);
        assert!(pages.iter().any(|page| page.objects.len() > 4), "{pages:?}");
        let mut all = BTreeSet::new();
        for page in &pages {
            let own: Vec<&Flow> = (flows.iter())
                .filter(|flow| flow.page == Some(page.number))
                .collect();
            assert_eq!(own.len(), page.objects.len());
            let first_done = own[0].begun_ns as f64 + own[0].took_us * 1e3;
            for flow in &own[1..] {
                assert!(flow.begun_ns as f64 >= first_done, "{flow:?}");
            }
            for flow in &own {
                assert_eq!(
                    (flow.error.as_deref(), flow.class.as_str()),
                    (None, "medium")
                );
                assert_eq!(
                    (flow.flow_bytes, flow.received_bytes),
                    (Some(20_000), 20_000)
                );
                assert!(flow.page_us >= flow.took_us, "{flow:?}");
            }
            let ports = ports(own.into_iter());
            assert!(ports.len() <= 3, "{ports:?}");
            assert!(ports.is_disjoint(&all), "each page has its own");
            all.extend(ports);
        }
    }

    #[test]
    fn connections_that_stay_open_serve_later_pages() {
        let web = Web {
            ms: 2_000,
            every_us: 100_000,
            at_once: 1,
            persistent: 1.0,
            ..web(1)
        };
        let flows = sent(web);
        assert!(web.plan_pages().len() > 10);
        assert!(flows.iter().all(|flow| flow.error.is_none()));
        // Pages that overlap, as on a busy machine, need one connection each.
        let ports = ports(flows.iter());
        assert!(ports.len() < web.plan_pages().len(), "{ports:?}");
    }

    #[test]
    fn a_page_whose_server_is_gone_fails_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let web = Web {
            ms: 100,
            every_us: 20_000,
            ..web(1)
        };
        let flows = client::send_plan(&Plan {
            servers: vec![address],
            arms: Vec::new(),
            seed: 1,
            senders: vec![Sender {
                class: String::new(),
                cc: None,
                load: Load::Web(web),
            }],
        });
        let objects: usize = web.plan_pages().iter().map(|page| page.objects.len()).sum();
        assert!(objects > 2);
        assert_eq!(flows.len(), objects);
        assert!(flows.iter().all(|flow| flow.error.is_some()));
    }
}
