"""Permitted connections under NetworkPolicies: the rules of networking.k8s.io/v1."""

from typing import Any

from tests.deploy.kubernetes_manifests import Manifests, Object, Pod, selects

# The label of a namespace that is its name.
NAME = "kubernetes.io/metadata.name"


class Network:
    """Answers for the pods and policies of one deployment. Peers outside of a pod's namespace have labels and the
    namespace's labels."""

    def __init__(self, manifests: Manifests) -> None:
        self._policies = manifests.of_kind("NetworkPolicy")

    def may(self, source: Pod, target: Pod, port: int) -> bool:
        is_own = source.namespace == target.namespace
        here, there = ((None if is_own else {NAME: pod.namespace}) for pod in (source, target))
        return self._leaves(source, target.labels, port, there) and self.enters(target, source.labels, port, here)

    def enters(self, target: Pod, labels: dict[str, str], port: int, namespace: dict[str, str] | None = None) -> bool:
        """Whether a peer reaches the pod; `namespace` holds the labels of another namespace, None is the pods' own."""
        rules = self._rules(target, "Ingress", "ingress")
        return rules is None or any(
            _names_port(rule, port, target) and _names_peer(rule.get("from"), labels, namespace) for rule in rules
        )

    def _leaves(self, source: Pod, labels: dict[str, str], port: int, namespace: dict[str, str] | None) -> bool:
        rules = self._rules(source, "Egress", "egress")
        return rules is None or any(
            _names_port(rule, port, None) and _names_peer(rule.get("to"), labels, namespace) for rule in rules
        )

    def ways_out(self, source: Pod) -> list[Object]:
        """The rules by which the pod reaches what is not a pod of its own namespace; each with ports and one peer."""
        rules = self._rules(source, "Egress", "egress")
        assert rules is not None, f"{source.name} may reach everything"
        return [
            {"ports": rule.get("ports"), "to": peer}
            for rule in rules
            for peer in rule.get("to", [None])
            if peer is None or "namespaceSelector" in peer or "ipBlock" in peer
        ]

    def _rules(self, pod: Pod, kind: str, field: str) -> list[Object] | None:
        """Return the rules of all policies for the pod; None where there is none, and everything is allowed."""
        chosen = [
            policy["spec"]
            for policy in self._policies
            if policy["metadata"].get("namespace", "fovea") == pod.namespace
            and kind in policy["spec"]["policyTypes"]
            and selects(policy["spec"]["podSelector"], pod.labels)
        ]
        return [rule for spec in chosen for rule in spec.get(field, ())] if chosen else None


def _names_port(rule: Object, port: int, target: Pod | None) -> bool:
    if "ports" not in rule:
        return True
    for one in rule["ports"]:
        first = target.ports.get(one["port"], -1) if target and isinstance(one["port"], str) else one["port"]
        if one.get("protocol", "TCP") == "TCP" and first <= port <= one.get("endPort", first):
            return True
    return False


def _names_peer(peers: list[Any] | None, labels: dict[str, str], namespace: dict[str, str] | None) -> bool:
    if peers is None:
        return True
    for peer in peers:
        if "ipBlock" in peer:
            continue
        is_there = selects(peer["namespaceSelector"], namespace or {}) if "namespaceSelector" in peer else not namespace
        if is_there and selects(peer.get("podSelector", {}), labels):
            return True
    return False
