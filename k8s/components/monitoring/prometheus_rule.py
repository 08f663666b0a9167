"""Write prometheus-rule.yaml beside this file: the alerts of monitoring/alerts.yml as Prometheus Operator takes them.

python k8s/components/monitoring/prometheus_rule.py
"""

from pathlib import Path

ALERTS = Path(__file__).parents[3] / "monitoring" / "alerts.yml"
RULE = Path(__file__).with_name("prometheus-rule.yaml")

HEAD = """\
# Written by prometheus_rule.py from monitoring/alerts.yml: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fovea
  labels:
    app.kubernetes.io/part-of: fovea
spec:
"""


def prometheus_rule(alerts: str) -> str:
    """The manifest of a rule file, whose text stays as it is but for its indentation."""
    return HEAD + "".join(f"  {line}\n" if line.strip() else "\n" for line in alerts.splitlines())


if __name__ == "__main__":
    RULE.write_text(prometheus_rule(ALERTS.read_text()))
