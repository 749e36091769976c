/* SPDX-License-Identifier: GPL-2.0-only
 *
 * Incast through one switch in ns-3, the closest match of `many-to-one` in Thalweg's simulator:
 * hosts on links of 100 Gbit/s around one switch, flows spread over the sending hosts, one
 * receiver. Prints one JSON object: packets that arrived, and how long the simulation itself
 * took, by the clock and in processor time (set-up apart).
 *
 *   ns3_incast HOSTS FLOWS MILLISECONDS fixed|dctcp
 *
 * fixed: UDP datagrams, each flow at its share of the receiver's link less 5 %. dctcp: TCP with
 * DCTCP and a RED queue that marks. It links ns-3, which is GPL-2.0-only, hence the licence.
 */
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <sys/resource.h>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

namespace
{
/* As a Thalweg packet: 1 KiB on the wire with all its headers. */
constexpr uint32_t packetBytes = 1024;
constexpr uint64_t linkBps = 100'000'000'000;
constexpr uint16_t firstPort = 1024;

uint64_t arrivedPackets;
uint64_t arrivedBytes;

void
Arrived(Ptr<const Packet> packet)
{
    arrivedPackets++;
    arrivedBytes += packet->GetSize();
}

double
UserSeconds()
{
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_utime.tv_usec * 1e-6;
}

[[noreturn]] void
Usage(const std::string& fault)
{
    std::cerr << "ns3_incast: " << fault
              << "\nusage: ns3_incast HOSTS FLOWS MILLISECONDS fixed|dctcp\n";
    std::exit(2);
}

uint32_t
Number(const char* text, const char* name)
{
    char* end;
    unsigned long value = std::strtoul(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value == 0 || value > 1'000'000)
        Usage(std::string(name) + ": expected 1 to 1000000, found " + text);
    return value;
}
} // namespace

int
main(int argc, char** argv)
{
    if (argc != 5)
        Usage("four arguments are needed");
    const uint32_t hosts = Number(argv[1], "HOSTS");
    const uint32_t flows = Number(argv[2], "FLOWS");
    const Time end = MilliSeconds(Number(argv[3], "MILLISECONDS"));
    const std::string control = argv[4];
    const bool tcp = control == "dctcp";
    if (!tcp && control != "fixed")
        Usage("expected fixed or dctcp, found " + control);
    if (hosts > 250 || flows % hosts != 0)
        Usage("FLOWS must be a multiple of HOSTS, which is at most 250");

    /* IP and transport headers of 20 bytes each (TCP: 12 more of options), and 2 of PPP. */
    const uint32_t payload = packetBytes - 2 - 20 - (tcp ? 32 : 8);
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpDctcp::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(payload));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 20));
    Config::SetDefault("ns3::RedQueueDisc::UseEcn", BooleanValue(true));
    Config::SetDefault("ns3::RedQueueDisc::UseHardDrop", BooleanValue(false));
    Config::SetDefault("ns3::RedQueueDisc::MeanPktSize", UintegerValue(packetBytes));
    Config::SetDefault("ns3::RedQueueDisc::QW", DoubleValue(1));
    Config::SetDefault("ns3::RedQueueDisc::MinTh", DoubleValue(400));
    Config::SetDefault("ns3::RedQueueDisc::MaxTh", DoubleValue(400));
    Config::SetDefault("ns3::RedQueueDisc::MaxSize", QueueSizeValue(QueueSize("10240p")));

    NodeContainer nodes;
    nodes.Create(hosts + 2);
    const Ptr<Node> gateway = nodes.Get(hosts);
    const Ptr<Node> receiver = nodes.Get(hosts + 1);
    InternetStackHelper().Install(nodes);

    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(linkBps)));
    link.SetDeviceAttribute("Mtu", UintegerValue(packetBytes - 2));
    link.SetChannelAttribute("Delay", TimeValue(NanoSeconds(3000)));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", QueueSizeValue(QueueSize("10240p")));
    TrafficControlHelper marking;
    marking.SetRootQueueDisc("ns3::RedQueueDisc", "LinkBandwidth", DataRateValue(DataRate(linkBps)),
                             "LinkDelay", TimeValue(NanoSeconds(3000)));
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4Address address;
    for (uint32_t host = 0; host <= hosts; host++)
    {
        const Ptr<Node> node = host < hosts ? nodes.Get(host) : receiver;
        const NetDeviceContainer devices = link.Install(gateway, node);
        if (node == receiver && tcp)
        {
            /* The device must not hold what the discipline is to judge. */
            DynamicCast<PointToPointNetDevice>(devices.Get(0))
                ->GetQueue()->SetMaxSize(QueueSize("2p"));
            marking.Install(devices.Get(0));
        }
        const Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
        addresses.NewNetwork();
        if (node == receiver)
            address = interfaces.GetAddress(1);
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();

    const std::string factory = tcp ? "ns3::TcpSocketFactory" : "ns3::UdpSocketFactory";
    Ptr<UniformRandomVariable> start = CreateObject<UniformRandomVariable>();
    const double flowBps = 0.95 * linkBps / flows * payload / packetBytes;
    for (uint32_t flow = 0; flow < flows; flow++)
    {
        const InetSocketAddress to(address, firstPort + flow);
        PacketSinkHelper(factory, to).Install(receiver);
        ApplicationContainer sender;
        if (tcp)
        {
            sender = BulkSendHelper(factory, to).Install(nodes.Get(flow % hosts));
        }
        else
        {
            OnOffHelper helper(factory, to);
            helper.SetConstantRate(DataRate(static_cast<uint64_t>(flowBps)), payload);
            sender = helper.Install(nodes.Get(flow % hosts));
        }
        /* Spread over 1 ms, as Thalweg's flows are. */
        sender.Start(MicroSeconds(start->GetInteger(0, 999)));
    }
    Ptr<NetDevice> last = receiver->GetDevice(1);
    last->TraceConnectWithoutContext("MacRx", MakeCallback(&Arrived));

    Simulator::Stop(end);
    const auto began = std::chrono::steady_clock::now();
    const double user = UserSeconds();
    Simulator::Run();
    const double usedUser = UserSeconds() - user;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::cout << "{\"packets\": " << arrivedPackets << ", \"bytes\": " << arrivedBytes
              << ", \"events\": " << Simulator::GetEventCount()
              << ", \"wall_s\": " << took.count() << ", \"user_s\": " << usedUser << "}\n";
    Simulator::Destroy();
    return 0;
}
