"""The contents of each generated block, and the command that writes all of them anew."""

from functools import partial

from starters.visitor.questions import SERVICES
from tests.documentation import (
    api,
    benchmark_figures,
    capacity,
    client_schemas,
    cluster_figures,
    headline,
    papers,
    position_figures,
    ranking_figures,
    reference,
    results,
    scaling_plan,
)
from tests.documentation.blocks import PAGES, Writer, render

WRITERS: dict[str, Writer] = {
    "headline": headline.headline_table,
    "settings": reference.settings_table,
    "metrics": reference.metrics_table,
    "commands": reference.commands_table,
    "models": reference.models_table,
    "capacity": capacity.capacity_table,
    "routes of embed": partial(api.routes_of, "embed"),
    "routes of collections": partial(api.routes_of, "collections"),
    "routes of generate": partial(api.routes_of, "generate", "openai", "anthropic", "cohere", "rerank"),
    "routes of predict": partial(api.routes_of, "predict"),
    "routes of score": partial(api.routes_of, "score"),
    "routes of decisions": partial(api.routes_of, "decisions"),
    "routes of the gateway": partial(api.routes_of, "models", "health"),
    "retrieval": results.retrieval_table,
    "mllm": results.mllm_table,
    "wordings": results.wordings_table,
    "scenes": benchmark_figures.scenes_table,
    "reader": results.reader_table,
    "answers": results.accuracy_table,
    "answers by seed": results.seeds_table,
    "recall": results.recall_table,
    "ranking by attention": ranking_figures.ranking_table,
    "ranking cost": ranking_figures.ranking_cost_table,
    "citations": ranking_figures.citations_table,
    "re-scaled positions": position_figures.answers_table,
    "ranking with re-scaled positions": position_figures.positions_ranking_table,
    "estimates": results.estimates_table,
    "estimates by seed": results.estimates_by_seed_table,
    "students": results.students_table,
    "word problems": partial(results.distillation_table, "word-problems"),
    "inferences": partial(results.distillation_table, "inferences"),
    "decisions": benchmark_figures.decisions_table,
    "decision cost": benchmark_figures.decision_cost_table,
    "back ends": benchmark_figures.labels_table,
    "captions": partial(results.caption_table, 0),
    "captions by attribute": partial(results.caption_table, 1),
    "refinement": results.refinement_table,
    "audits": results.audit_table,
    "quality": results.quality_table,
    "trainings": results.training_table,
    "blind and seeing": results.seeing_table,
    "general ability": results.general_table,
    **{f"visitor {service}": partial(results.visitor_table, service) for service in SERVICES},
    "visitor reliability": results.reliability_table,
    "visitor cases": results.visitor_cases_table,
    "papers by status": papers.status_table,
    "papers run": papers.runs_text,
    "papers": papers.rows_table,
    "embed figures": partial(benchmark_figures.figures_table, benchmark_figures.EMBED),
    "search figures": partial(benchmark_figures.figures_table, benchmark_figures.SEARCH),
    "generate figures": partial(benchmark_figures.figures_table, benchmark_figures.GENERATE),
    "predict figures": partial(benchmark_figures.figures_table, benchmark_figures.PREDICT),
    "score figures": partial(benchmark_figures.figures_table, benchmark_figures.SCORE),
    "gateway figures": partial(benchmark_figures.figures_table, benchmark_figures.GATEWAY),
    "autoscaling": benchmark_figures.autoscaling_table,
    "drills": benchmark_figures.drills_table,
    "waking": benchmark_figures.waking_table,
    "other servers": benchmark_figures.peers_table,
    "bulk": benchmark_figures.bulk_table,
    "bulk on ray": benchmark_figures.bulk_on_ray_table,
    "search in a cluster": cluster_figures.search_table,
    "further conditions": cluster_figures.conditions_table,
    "load of searches": cluster_figures.loads,
    "migrations": cluster_figures.migration_table,
    "backups": cluster_figures.backups_table,
    "plan assumptions": scaling_plan.assumptions_table,
    "plan": scaling_plan.plan_table,
    "runs": benchmark_figures.runs_table,
}


def write_all() -> None:
    """Write every block of every page, the chart's names of settings and the client's types anew."""
    for path in PAGES:
        path.write_text(render(path.read_text(), WRITERS))
    reference.CHART_SETTINGS.write_text(reference.chart_settings())
    client_schemas.CLIENT_SCHEMAS.write_text(client_schemas.client_schemas())
