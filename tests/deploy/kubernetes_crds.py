"""Schemas of the custom resources, no wider than the fields that the manifests use: what is not in them is refused.

They follow KEDA 2.20, Prometheus Operator 0.80, Gateway API 1.2, CloudNativePG 1.27 and KubeRay 1.4;
later versions of all take the same.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
WHOLE: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
# Both as their custom resource definitions have them.
PROMETHEUS_DURATION: Schema = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
GATEWAY_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
NAMES: Schema = {"type": "object", "additionalProperties": TEXT}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def many(items: Schema, *, least: int = 1) -> Schema:
    return {"type": "array", "items": items, "minItems": least}


def fields(required: dict[str, Schema], **optional: Schema) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def resource(api_version: str, kind: str, spec: Schema) -> Schema:
    metadata = fields({"name": TEXT}, namespace=TEXT, labels=NAMES, annotations=NAMES)
    return fields({"apiVersion": one_of(api_version), "kind": one_of(kind), "metadata": metadata, "spec": spec})


SELECTOR = fields(
    {},
    matchLabels=NAMES,
    matchExpressions=many(
        fields({"key": TEXT, "operator": one_of("In", "NotIn", "Exists", "DoesNotExist")}, values=many(TEXT))
    ),
)
SCALING_RULES = fields(
    {},
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy=one_of("Max", "Min", "Disabled"),
    policies=many(
        fields(
            {
                "type": one_of("Pods", "Percent"),
                "value": POSITIVE,
                "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
            }
        )
    ),
)
# Metadata of a trigger are text, numbers and flags too; each scaler has its own.
PROMETHEUS_TRIGGER = fields(
    {
        "type": one_of("prometheus"),
        "metadata": fields(
            {"serverAddress": TEXT, "query": TEXT, "threshold": TEXT},
            activationThreshold=TEXT,
            ignoreNullValues=one_of("true", "false"),
        ),
    },
    name=TEXT,
    metricType=one_of("AverageValue", "Value"),
)
# Since KEDA 2.20 the endpoints asked are those of the Service that the URL names, and no others of its namespace.
METRICS_API_TRIGGER = fields(
    {
        "type": one_of("metrics-api"),
        "metadata": fields(
            {"url": TEXT, "valueLocation": TEXT, "targetValue": TEXT},
            activationTargetValue=TEXT,
            aggregateFromKubeServiceEndpoints=one_of("true", "false"),
            aggregationType=one_of("average", "sum", "max", "min"),
            format=one_of("prometheus", "json", "xml", "yaml"),
            authMode=one_of("apiKey", "basic", "tls", "bearer", "custom", "oauth"),
        ),
    },
    name=TEXT,
    metricType=one_of("AverageValue", "Value"),
    authenticationRef=fields({"name": TEXT}),
)
CPU_TRIGGER = fields(
    {"type": one_of("cpu"), "metricType": one_of("Utilization", "AverageValue"), "metadata": fields({"value": TEXT})}
)
SCALED_OBJECT = resource(
    "keda.sh/v1alpha1",
    "ScaledObject",
    fields(
        {
            "scaleTargetRef": fields({"name": TEXT}, kind=TEXT, apiVersion=TEXT),
            "triggers": many({"oneOf": [PROMETHEUS_TRIGGER, METRICS_API_TRIGGER, CPU_TRIGGER]}),
        },
        pollingInterval=POSITIVE,
        cooldownPeriod=WHOLE,
        initialCooldownPeriod=WHOLE,
        minReplicaCount=WHOLE,
        maxReplicaCount=POSITIVE,
        fallback=fields(
            {"failureThreshold": POSITIVE, "replicas": WHOLE},
            behavior=one_of("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"),
        ),
        advanced=fields(
            {},
            horizontalPodAutoscalerConfig=fields(
                {}, name=TEXT, behavior=fields({}, scaleUp=SCALING_RULES, scaleDown=SCALING_RULES)
            ),
        ),
    ),
)
TRIGGER_AUTHENTICATION = resource(
    "keda.sh/v1alpha1",
    "TriggerAuthentication",
    fields({"secretTargetRef": many(fields({"parameter": TEXT, "name": TEXT, "key": TEXT}))}),
)
POD_MONITOR = resource(
    "monitoring.coreos.com/v1",
    "PodMonitor",
    fields(
        {
            "selector": SELECTOR,
            "podMetricsEndpoints": many(
                fields(
                    {"port": TEXT},
                    path=TEXT,
                    interval=PROMETHEUS_DURATION,
                    scheme=one_of("http", "https"),
                    authorization=fields({"credentials": fields({"name": TEXT, "key": TEXT})}, type=TEXT),
                )
            ),
        },
        jobLabel=TEXT,
        podTargetLabels=many(TEXT),
    ),
)
PROMETHEUS_RULE = resource(
    "monitoring.coreos.com/v1",
    "PrometheusRule",
    fields(
        {
            "groups": many(
                fields(
                    {
                        "name": TEXT,
                        "rules": many(
                            fields(
                                {"expr": TEXT},
                                alert=TEXT,
                                record=TEXT,
                                **{"for": PROMETHEUS_DURATION},
                                keep_firing_for=PROMETHEUS_DURATION,
                                labels=NAMES,
                                annotations=NAMES,
                            )
                        ),
                    },
                    interval=PROMETHEUS_DURATION,
                )
            )
        }
    ),
)
GATEWAY = resource(
    "gateway.networking.k8s.io/v1",
    "Gateway",
    fields(
        {
            "gatewayClassName": TEXT,
            "listeners": many(
                fields(
                    {"name": TEXT, "port": PORT, "protocol": one_of("HTTP", "HTTPS", "TLS")},
                    hostname=TEXT,
                    tls=fields(
                        {"mode": one_of("Terminate", "Passthrough"), "certificateRefs": many(fields({"name": TEXT}))}
                    ),
                    allowedRoutes=fields({"namespaces": fields({"from": one_of("Same", "All", "Selector")})}),
                )
            ),
        }
    ),
)
HTTP_ROUTE = resource(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    fields(
        {
            "parentRefs": many(
                fields({"name": TEXT}, group=TEXT, kind=TEXT, namespace=TEXT, sectionName=TEXT, port=PORT)
            ),
            "rules": many(
                fields(
                    {},
                    matches=many(
                        fields({"path": fields({"type": one_of("Exact", "PathPrefix"), "value": {"pattern": "^/"}})})
                    ),
                    backendRefs=many(fields({"name": TEXT, "port": PORT}, weight=WHOLE)),
                    timeouts=fields({}, request=GATEWAY_DURATION, backendRequest=GATEWAY_DURATION),
                    filters=many(
                        fields(
                            {
                                "type": one_of("RequestRedirect"),
                                "requestRedirect": fields(
                                    {}, scheme=one_of("http", "https"), statusCode=one_of(301, 302)
                                ),
                            }
                        )
                    ),
                )
            ),
        },
        hostnames=many(TEXT),
    ),
)
# Of a pod, which has a schema of its own.
TEMPLATE = fields({"metadata": fields({"labels": NAMES}, annotations=NAMES), "spec": {"type": "object"}})
RAY_JOB = resource(
    "ray.io/v1",
    "RayJob",
    fields(
        {
            "entrypoint": TEXT,
            "rayClusterSpec": fields(
                {
                    "rayVersion": TEXT,
                    "headGroupSpec": fields({"rayStartParams": NAMES, "template": TEMPLATE}),
                    "workerGroupSpecs": many(
                        fields(
                            {"groupName": TEXT, "rayStartParams": NAMES, "template": TEMPLATE},
                            replicas=WHOLE,
                            minReplicas=WHOLE,
                            maxReplicas=POSITIVE,
                        )
                    ),
                }
            ),
        },
        suspend={"type": "boolean"},
        submissionMode=one_of("K8sJobMode", "HTTPMode", "InteractiveMode"),
        submitterPodTemplate=TEMPLATE,
        backoffLimit=WHOLE,
        activeDeadlineSeconds=POSITIVE,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=WHOLE,
    ),
)
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(m|Ki|Mi|Gi|Ti)?$"}
RESOURCES = fields(
    {}, requests=fields({}, cpu=QUANTITY, memory=QUANTITY), limits=fields({}, cpu=QUANTITY, memory=QUANTITY)
)
DISK = fields({"size": QUANTITY}, storageClass=TEXT)
TOLERATIONS = many(
    fields(
        {},
        key=TEXT,
        operator=one_of("Exists", "Equal"),
        value=TEXT,
        effect=one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
    )
)
PULL_SECRETS = many(fields({"name": TEXT}))
CLUSTER = resource(
    "postgresql.cnpg.io/v1",
    "Cluster",
    fields(
        {"instances": POSITIVE, "storage": DISK},
        imageName=TEXT,
        walStorage=DISK,
        resources=RESOURCES,
        postgresql=fields(
            {},
            synchronous=fields(
                {"method": one_of("any", "first"), "number": POSITIVE},
                dataDurability=one_of("required", "preferred"),
                failoverQuorum={"type": "boolean"},
            ),
            parameters=NAMES,
        ),
        bootstrap=fields(
            {
                "initdb": fields(
                    {"database": TEXT, "owner": TEXT}, encoding=one_of("UTF8"), postInitApplicationSQL=many(TEXT)
                )
            }
        ),
        affinity=fields(
            {},
            enablePodAntiAffinity={"type": "boolean"},
            podAntiAffinityType=one_of("required", "preferred"),
            topologyKey=TEXT,
            nodeSelector=NAMES,
            tolerations=TOLERATIONS,
        ),
        priorityClassName=TEXT,
        imagePullSecrets=PULL_SECRETS,
    ),
)
SCHEMAS: dict[str, Schema] = {
    "Cluster": CLUSTER,
    "ScaledObject": SCALED_OBJECT,
    "TriggerAuthentication": TRIGGER_AUTHENTICATION,
    "PodMonitor": POD_MONITOR,
    "PrometheusRule": PROMETHEUS_RULE,
    "Gateway": GATEWAY,
    "HTTPRoute": HTTP_ROUTE,
    "RayJob": RAY_JOB,
}
